-- Purpose: which versions of which services answered requests, and from when to when
-- Of a sample, begin and end are those of the requests that were read, and a version with few requests may be missed.
-- Parameters:
--   since      DateTime64(9, 'UTC')        begin of the window, inclusive
--   until      DateTime64(9, 'UTC')        end of the window, exclusive
--   service    String = ''                 service.name; empty = all
--   model      String = ''                 gen_ai.request.model; empty = all
--   instance   String = ''                 service.instance.id; empty = all
--   attribute  String = 'service.version'  resource attribute that names the version
--   parts      UInt16 = 4096                parts of all traces that are read, of 4,096, by a hash of their id
--   spans      Identifier = 'spans'         spans, or spans_sample, which has the first 256 parts
-- Columns:
--   service        LowCardinality(String)  service.name
--   version        String                  value of the attribute; empty where the resource has none
--   instances      UInt64                  instances that answered with it
--   requests       UInt64                  requests, weighted, rounded
--   kept_requests  UInt64                  requests that are read and stand for them
--   first_start    DateTime64(9, 'UTC')    begin of its first request in the window
--   last_start     DateTime64(9, 'UTC')    begin of its last request in the window
-- Tables: tailspan.spans, tailspan.spans_sample
with
-- Resources are few, requests many: the attribute is looked up once for each resource.
resources as (
    select
        service,
        resource,
        any(resource_attributes) as named,
        groupUniqArray(instance) as instances,
        sum(weight) as weight_sum,
        count() as kept_requests,
        min(start) as first_start,
        max(start) as last_start
    from tailspan.{spans:Identifier}
    where
        role = 'request'
        and sipHash64(trace_id) % 4096 < {parts:UInt16}
        and start >= {since:DateTime64(9, 'UTC')}
        and start < {until:DateTime64(9, 'UTC')}
        and ({service:String} = '' or service = {service:String})
        and ({model:String} = '' or model = {model:String})
        and ({instance:String} = '' or instance = {instance:String})
    group by service, resource
)

select
    service,
    named[{attribute:String}] as version,
    length(groupUniqArrayArray(instances)) as instances,
    toUInt64(round(sum(weight_sum) * 4096 / {parts:UInt16})) as requests,
    sum(kept_requests) as kept_requests,
    min(resources.first_start) as first_start,
    max(resources.last_start) as last_start
from resources
group by service, version
order by first_start, service, version
