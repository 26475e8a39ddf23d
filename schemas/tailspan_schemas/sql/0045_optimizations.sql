create view if not exists tailspan.optimizations -- noqa: PRS
(
    id String comment 'Id of the entry, 32 hex digits',
    recorded DateTime64(9, 'UTC') comment 'When the first state was written, UTC, ns',
    changed DateTime64(9, 'UTC') comment 'When the latest state was written, UTC, ns',
    removed Bool comment 'Whether the entry was taken out of the ledger',
    name String comment 'What was done',
    source String comment 'File or story that the entry was imported from; empty = made by hand',
    recorded_by String comment 'Who wrote the latest state',
    stage String comment 'The stage that it was meant for; request = end-to-end',
    layer Int64 comment 'Number of the decoder layer from 0; -1 = about no single layer',
    kind String comment 'Kind of layer; empty = about a stage',
    before_since_ns Int64 comment 'Begin of the window without it, ns since the epoch; 0 = none named',
    before_until_ns Int64 comment 'End of the window without it, exclusive, ns since the epoch',
    after_since_ns Int64 comment 'Begin of the window with it, ns since the epoch; 0 = none named',
    after_until_ns Int64 comment 'End of the window with it, exclusive, ns since the epoch',
    service String comment 'Only requests of this service; empty = all',
    model String comment 'Only requests for this model; empty = all',
    instance String comment 'Only requests of this instance; empty = all',
    cost String comment 'What it costs, in words',
    cost_gpu_memory_bytes Int64 comment 'Device memory that it takes, bytes',
    cost_accuracy_points Float64 comment 'Accuracy that it costs, percentage points',
    claim_before_ns Float64 comment 'Claimed time before, ns; 0 = no claim',
    claim_after_ns Float64 comment 'Claimed time afterwards, ns',
    claim_per String comment 'What the claimed times are for: request or token; empty = no claim',
    claim_tokens Float64 comment 'Tokens an answer that a claim by token goes with, count; 0 = not said'
)
as
with
    latest as (
        select
            trace_id,
            min(start) as recorded,
            max(start) as changed,
            argMax(
                (attributes_string, attributes_int, attributes_double, attributes_bool), (start, span_id)
            ) as state
        from tailspan.optimization_records
        group by trace_id
    ),

    decoded as (
        select
            trace_id,
            recorded,
            changed,
            state.1 as attributes_string,
            state.2 as attributes_int,
            state.3 as attributes_double,
            state.4 as attributes_bool
        from latest
    )

select
    lower(hex(trace_id)) as id,
    recorded,
    changed,
    attributes_bool['tailspan.optimization.removed'] as removed,
    attributes_string['tailspan.optimization.name'] as name,
    attributes_string['tailspan.optimization.source'] as source,
    attributes_string['tailspan.optimization.by'] as recorded_by,
    attributes_string['tailspan.optimization.stage'] as stage,
    if(
        mapContains(attributes_int, 'tailspan.optimization.layer'), attributes_int['tailspan.optimization.layer'], -1
    ) as layer,
    attributes_string['tailspan.optimization.kind'] as kind,
    attributes_int['tailspan.optimization.before.since_unix_ns'] as before_since_ns,
    attributes_int['tailspan.optimization.before.until_unix_ns'] as before_until_ns,
    attributes_int['tailspan.optimization.after.since_unix_ns'] as after_since_ns,
    attributes_int['tailspan.optimization.after.until_unix_ns'] as after_until_ns,
    attributes_string['tailspan.optimization.service'] as service,
    attributes_string['tailspan.optimization.model'] as model,
    attributes_string['tailspan.optimization.instance'] as instance,
    attributes_string['tailspan.optimization.cost'] as cost,
    attributes_int['tailspan.optimization.cost.gpu_memory_bytes'] as cost_gpu_memory_bytes,
    attributes_double['tailspan.optimization.cost.accuracy_points'] as cost_accuracy_points,
    attributes_double['tailspan.optimization.claim.before_ns'] as claim_before_ns,
    attributes_double['tailspan.optimization.claim.after_ns'] as claim_after_ns,
    attributes_string['tailspan.optimization.claim.per'] as claim_per,
    attributes_double['tailspan.optimization.claim.tokens'] as claim_tokens
from decoded
comment 'The optimisation ledger: the latest state of each entry, one row each'
