"""Imported before all else here, to say what is missing in words of our own."""

try:
    import pyspark  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "pyspark":
        raise
    raise ModuleNotFoundError(
        "tamis.spark needs PySpark: pip install 'tamis[spark]'", name="pyspark"
    ) from None
