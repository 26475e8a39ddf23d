-- Purpose: the entries of the optimisation ledger, each in its latest state
-- Parameters:
--   removed  Bool = false  whether to list removed entries too
-- Columns:
--   id                     String                 id of the entry, 32 hex digits
--   recorded               DateTime64(9, 'UTC')   when its first state was written
--   removed                Bool                   whether it was taken out of the ledger
--   name                   String                 what was done
--   source                 String                 file or story that it was imported from; empty = made by hand
--   recorded_by            String                 who wrote the latest state
--   stage                  String                 the stage that it was meant for; request = end-to-end
--   layer                  Int64                  number of the decoder layer; -1 = about no single layer
--   kind                   String                 kind of layer; empty = about a stage
--   before_since_ns        Int64                  ns since the epoch, begin of the window without it; 0 = none named
--   before_until_ns        Int64                  ns since the epoch, end of the window without it, exclusive
--   after_since_ns         Int64                  ns since the epoch, begin of the window with it; 0 = none named
--   after_until_ns         Int64                  ns since the epoch, end of the window with it, exclusive
--   service                String                 only requests of this service; empty = all
--   model                  String                 only requests for this model; empty = all
--   instance               String                 only requests of this instance; empty = all
--   cost                   String                 what it costs, in words
--   cost_gpu_memory_bytes  Int64                  device memory that it takes, bytes
--   cost_accuracy_points   Float64                accuracy that it costs, percentage points
--   claim_before_ns        Float64                ns, claimed time before; 0 = no claim
--   claim_after_ns         Float64                ns, claimed time afterwards
--   claim_per              String                 what the claimed times are for: request or token; empty = no claim
--   claim_tokens           Float64                tokens an answer that a claim by token goes with; 0 = not said
-- Tables: tailspan.optimizations
select
    id,
    recorded,
    optimizations.removed,
    name,
    source,
    recorded_by,
    stage,
    layer,
    kind,
    before_since_ns,
    before_until_ns,
    after_since_ns,
    after_until_ns,
    service,
    model,
    instance,
    cost,
    cost_gpu_memory_bytes,
    cost_accuracy_points,
    claim_before_ns,
    claim_after_ns,
    claim_per,
    claim_tokens
from tailspan.optimizations
where {removed:Bool} or not optimizations.removed
order by recorded, name, id
