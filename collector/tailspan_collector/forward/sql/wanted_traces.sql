-- Purpose: the traces that got spans in a slice and are wanted, judged by all their spans up to its end
-- Parameters:
--   after           Int64                  where the slice begins, unix time, s, exclusive
--   until           Int64                  where it ends, unix time, s, inclusive
--   first_start     DateTime64(9, 'UTC')   no span of those traces began earlier
--   last_start      DateTime64(9, 'UTC')   no span of those traces began later
--   errors          Bool                   wanted: any span with status error
--   slower_than_ns  Int64                  wanted: a root or request span that took longer, ns; 0 = none for this
--   threshold       UInt64                 wanted: the 56 random bits of the trace are not less
-- Columns:
--   trace_id    String  hexadecimal
--   is_ruled    Bool    wanted for an error or its duration, not only for its random bits
--   was_wanted  Bool    wanted by the spans before the slice already, so that those were sent
--   spans       UInt64  spans to send, count
-- Tables: tailspan.spans
with
    touched as (
        select trace_id
        from tailspan.spans
        where stored > toDateTime({after:Int64}, 'UTC') and stored <= toDateTime({until:Int64}, 'UTC')
    ),

    judged as (
        select
            trace_id,
            stored > toDateTime({after:Int64}, 'UTC') as is_new,
            ({errors:Bool} and status_code = 2)
            or (
                {slower_than_ns:Int64} > 0
                and duration_ns > {slower_than_ns:Int64}
                and (parent_span_id = toFixedString('', 8) or role = 'request')
            ) as has_rule,
            extract(trace_state, '(?:^|,)[ \t]*ot=(?:[^,]*;)?rv:([0-9a-f]{14})') as given_bits,
            if(given_bits != '', unhex(given_bits), substring(trace_id, 10, 7)) as random_bits,
            reinterpretAsUInt64(reverse(random_bits)) >= {threshold:UInt64} as has_share
        from tailspan.spans
        where
            start >= {first_start:DateTime64(9, 'UTC')}
            and start <= {last_start:DateTime64(9, 'UTC')}
            and stored <= toDateTime({until:Int64}, 'UTC')
            and trace_id in (select trace_id from touched)
    )

select
    lower(hex(judged.trace_id)) as trace_id,
    max(has_rule) = 1 as is_ruled,
    max(not is_new and (has_rule or has_share)) = 1 as was_wanted,
    if(was_wanted, countIf(is_new), count()) as spans
from judged
group by judged.trace_id
having max(has_rule or has_share)
order by trace_id
