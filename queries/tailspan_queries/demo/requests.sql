-- Purpose: the demo's requests with their stages, to hold them against the client's clock
-- Parameters:
--   since    DateTime64(9, 'UTC')  begin of the window, inclusive
--   until    DateTime64(9, 'UTC')  end of the window, exclusive
--   service  String                service.name of the demo's server
-- Columns:
--   trace_id        String                                32 hex digits
--   parent_span_id  String                                16 hex digits, the client's span
--   start_ns        Int64                                 ns since the epoch, begin of the request
--   e2e_ns          Int64                                 ns, end-to-end time
--   ttft_ns         Int64                                 ns, time to first token; 0 without a token
--   status_code     Int8                                  OTLP status: 0 unset, 1 ok, 2 error
--   stages          Array(Tuple(String, Int64, Int64))    name, begin (ns since the epoch) and wall time (ns)
-- Tables: tailspan.spans
WITH
found AS (
    SELECT
        trace_id,
        if(role = 'request', span_id, parent_span_id) AS request_span_id,
        anyIf(parent_span_id, role = 'request') AS parent,
        anyIf(toUnixTimestamp64Nano(start), role = 'request') AS start_ns,
        anyIf(duration_ns, role = 'request') AS e2e_ns,
        anyIf(ttft_ns, role = 'request') AS ttft_ns,
        anyIf(status_code, role = 'request') AS status_code,
        groupArrayIf((toString(stage), toUnixTimestamp64Nano(start), duration_ns), role = 'stage') AS stages,
        countIf(role = 'request') AS requests
    FROM tailspan.spans
    WHERE
        role IN ('request', 'stage')
        AND service = {service:String}
        AND start >= {since:DateTime64(9, 'UTC')}
        AND start < {until:DateTime64(9, 'UTC')}
    GROUP BY trace_id, request_span_id
)

SELECT
    lower(hex(trace_id)) AS trace_id,
    lower(hex(parent)) AS parent_span_id,
    start_ns,
    e2e_ns,
    ttft_ns,
    status_code,
    arraySort(part -> part.2, stages) AS stages
FROM found
WHERE requests > 0
ORDER BY start_ns, trace_id
