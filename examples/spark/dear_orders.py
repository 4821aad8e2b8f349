"""Dear orders of Europe, how many and how much by tag: once on this machine, once on a cluster.

python dear_orders.py                               Spark in this process
python dear_orders.py --master spark://host:7077    a cluster
python dear_orders.py --master sc://host:15002      a Spark Connect server
"""

import argparse

from pyspark.sql import functions as sf

from tamis.spark import session, sql92

parser = argparse.ArgumentParser()
parser.add_argument("--nameserver", default="127.0.0.1:9876")
parser.add_argument("--topic", default="orders")
parser.add_argument("--master")
options = parser.parse_args()

spark = session("dear orders", master=options.master)
orders = (
    spark.read.format("rocketmq")
    .option("nameserver", options.nameserver)
    .option("columns", "tags,properties")
    .option("properties", "price:double")
    .load(options.topic)
)
dear = orders.where(sql92("region = 'EU' AND price > 100"))
for row in dear.groupBy("tags").agg(sf.count("*"), sf.sum("price")).orderBy("tags").collect():
    print(*row)
spark.stop()
