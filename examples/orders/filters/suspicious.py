"""A filter in code, for what SQL can't say: an order of a VIP that is paid back, or whose price is
so round that somebody made it up."""

from tamis.client import ReceivedMessage


class Suspicious:
    def match(self, message: ReceivedMessage) -> bool:
        if message.tags == "REFUND":
            return message.properties.get("vip") == "true"
        price = float(message.properties["price"])  # "free" fails, and is counted as that
        return price >= 100 and price % 50 == 0
