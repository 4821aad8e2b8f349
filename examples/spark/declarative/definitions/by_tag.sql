CREATE MATERIALIZED VIEW by_tag AS
SELECT tags, count(*) AS orders FROM dear_orders GROUP BY tags
