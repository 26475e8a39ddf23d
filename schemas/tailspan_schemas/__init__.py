"""The ClickHouse schema of tailspan: numbered `.sql` files, the OTLP protobuf schema, and how to read a row back.

`migrations` applies the files, `rows` rebuilds an OTLP span from a row, `values` decodes single attribute values.
"""
