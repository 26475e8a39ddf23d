create materialized view if not exists tailspan.layer_steps_mv to tailspan.layer_steps as
-- Runs at every insert of spans, so it only filters; what follows runs for the spans that it lets through.
select
    trace_id,
    span_id,
    service,
    instance,
    model,
    engine_id,
    step,
    start,
    weight,
    attributes_string,
    attributes_int,
    attributes_other['tailspan.layers.parts'] as parts,
    attributes_other['tailspan.layers.ns'] as times
from tailspan.spans
where role = 'step' and mapContains(attributes_other, 'tailspan.layers.ns')
