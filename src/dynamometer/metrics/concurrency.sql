-- metric: concurrency
-- unit: requests in flight from at_ns until the next row
-- formula: requests sent so far less requests ended so far
-- exclusions: none; warm-up requests load the engine too
with steps as (
  select sent_ns as at_ns, 1 as step from answers where sent_ns is not null
  union all select ended_ns, -1 from answers where sent_ns is not null),
moments as (select at_ns, sum(step) as step from steps group by at_ns)
select at_ns, sum(step) over (order by at_ns)::bigint as in_flight from moments order by at_ns
