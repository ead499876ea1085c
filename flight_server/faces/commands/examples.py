"""Examples at the end of each command's help, by the name of the command."""

from __future__ import annotations

from typing import Final

EXAMPLES: Final = {
    "demo": ("statflight demo --dir /tmp/demo --keep",),
    "serve": (
        "statflight serve ./lake --http-port 8816",
        "statflight serve --db stats.duckdb --http-port 8816",
        "statflight serve --config /etc/statflight.toml --checks rules.toml",
        "statflight serve --db b.duckdb --replicate-to s3://bucket/stats --standby",
    ),
    "worker": (
        "statflight worker --server grpc+tls://stats.example.com:8815",
        "statflight worker --engine spark --spark-master spark://host:7077",
    ),
    "doctor": (
        "statflight doctor",
        "statflight doctor --server grpc://stats:8815 --token secret",
        "statflight doctor --db restored.duckdb",
    ),
    "config": ("statflight config", "statflight config --config /etc/statflight.toml --json"),
    "backup": ("statflight backup /backups/stats.duckdb",),
    "export": (
        "statflight export ./stats --server grpc://stats:8815",
        "statflight export ./stats --db old.duckdb",
    ),
    "import": ("statflight import ./stats --server grpc://127.0.0.1:8815",),
    "replicas": ("statflight replicas s3://bucket/stats",),
    "upgrade": ("statflight upgrade --db stats.duckdb --dry-run", "statflight upgrade --db stats.duckdb"),
    "restore": ("statflight restore s3://bucket/stats new.duckdb --at 2026-11-23T12:00:00Z",),
    "connect": (
        "statflight connect lake delta ./lake",
        "statflight connect sales iceberg https://rest.example.com -o warehouse=main",
        "statflight connect raw parquet s3://bucket/raw -o secret=s3 -o include='web.*'",
    ),
    "discover": ("statflight discover lake", "statflight discover lake lake.sales.orders --full-rescan"),
    "disconnect": ("statflight disconnect lake",),
    "capture": (
        "statflight capture 'lake.*'",
        "statflight capture orders --columns id,amount --kinds NDV,HISTOGRAM",
        "statflight capture events --sample random --max-seconds 10",
        "statflight capture orders --format json",
    ),
    "resolve": (
        "statflight resolve orders --columns id --budget-ms 500",
        'statflight resolve orders --columns id --where "id > 5"',
    ),
    "publish": (
        "statflight publish orders --to trino --dry-run",
        "statflight publish 'lake.sales.*' --to iceberg",
    ),
    "withdraw": ("statflight withdraw orders --from trino",),
    "explain": ("statflight explain 'SELECT * FROM orders WHERE amount > 5' --spark 'local[*]' --run",),
    "describe": (
        "statflight describe orders",
        "statflight describe orders --owner sales@example.com --tag gold,pii --note 'loaded at 6 by the shop'",
    ),
    "emit": (
        "statflight emit orders --to openlineage",
        "statflight emit 'lake.*' --to datahub --url https://datahub.example.com",
    ),
    "expire": ("statflight expire", "statflight expire orders --no-dry-run"),
    "ls": ("statflight ls", "statflight ls 'lake.sales.*' --format json"),
    "show": (
        "statflight show s3://bucket/orders",
        "statflight show orders",
        "statflight show 'lake.sales.*' --snapshot 12 --format csv",
    ),
    "joins": ("statflight joins 'lake.*'", "statflight joins orders --format json"),
    "history": ("statflight history orders amount",),
    "diff": (
        "statflight diff orders",
        "statflight diff orders 11 12",
        "statflight diff orders 11 current --fail-on 'row_count < -10%'",
    ),
    "query": (
        "statflight query stats.columns --columns column_name,ndv --where 'ndv > 100'",
        "statflight query stats.tables --snapshot all --format csv",
        "statflight query sys.flights",
    ),
    "sql": (
        "statflight sql",
        "statflight sql 'SELECT table_name, sum(row_count) FROM stats.tables GROUP BY ALL'",
        "statflight sql --format csv < report.sql",
    ),
    "scan": (
        "statflight scan orders --where 'amount > 100' --paths",
        "statflight scan orders --where 'id = 5' --max-bytes 1000000",
        "statflight scan orders --where 'id = 5' --format duckdb",
    ),
    "estimate": (
        "statflight estimate lake.sales.orders --where \"region = 'north'\"",
        "statflight estimate orders --where 'id >= 300' --columns id,price --format json",
    ),
    "answer": ("statflight answer 'SELECT count(*), max(day) FROM lake.sales.orders WHERE region = 5'",),
    "jobs": ("statflight jobs --active --watch", "statflight jobs --cancel JOB"),
    "check": (
        "statflight check orders --rule 'row_count >= 1000' --rule 'id: distinct_fraction = 1'",
        "statflight check 'lake.*' --rules rules.toml --against previous --format junit",
        "statflight check orders --rule learned --rule 'customer_id in customers.id'",
        "statflight check orders --suggest",
    ),
    "mcp": (
        "statflight mcp --server grpc+tls://stats.example.com:8815",
        "statflight mcp --config agents.toml",
    ),
    "report": ("statflight report orders -o orders.html", "statflight report 'lake.*' -o report"),
}
