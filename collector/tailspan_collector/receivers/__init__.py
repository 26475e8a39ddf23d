"""Receivers: OTLP over gRPC (`grpc`) and over HTTP (`http`), which hand the bytes of each request to a spool.

In: export requests of the three signals. Out: `Intake.append`, and an answer that says what the sender must know.
Both share `settings`, `admission` (size, framing, spool), `storing` (the wait for the disk), `workers` (threads and
memory), `refusals` (what a sender is told and whether to retry), `decompress`, `tokens`, `tls`, `loops` and `ports`.
gRPC alone: `bodies`, `grpc_services`. HTTP alone: `connections`, `http_app`, `http_body`, `cors`, `otlp_json`.
"""
