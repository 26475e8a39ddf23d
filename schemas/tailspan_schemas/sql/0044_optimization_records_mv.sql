create materialized view if not exists tailspan.optimization_records_mv to tailspan.optimization_records as
-- Runs at every insert of spans, so it only filters; the view decodes. A table of its own, as retention of spans must
-- not take the ledger with it.
select
    trace_id,
    span_id,
    start,
    attributes_string,
    attributes_int,
    attributes_double,
    attributes_bool
from tailspan.spans
where role = 'optimization'
