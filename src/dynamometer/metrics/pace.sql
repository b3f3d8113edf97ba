-- metric: pace
-- unit: one row a slice of the window (bin_ns of the table span); tokens, answers and good answers a second
-- formula: as throughput, slice by slice, in time order
-- exclusions: as throughput; the last, incomplete slice
with slices as (
  select unnest(range((until_ns - from_ns) // bin_ns)) as slice from span),
tokens as (
  select (at_ns - from_ns) // bin_ns as slice, sum(tokens) as tokens from gaps join answers using (request), span
  where phase = 'load' and outcome in ('ok', 'cancelled') and at_ns >= from_ns group by 1),
ends as (
  select (last_ns - from_ns) // bin_ns as slice, count(*) as answers from answers, span
  where phase = 'load' and outcome = 'ok' and last_ns >= from_ns group by 1),
good as (
  select (ended_ns - from_ns) // bin_ns as slice, count(*) as good from goodput, span where good and ended_ns >= from_ns group by 1)
select slice, from_ns + slice * bin_ns as at_ns, coalesce(tokens, 0) * 1e9 / bin_ns as output_tokens_per_s,
  coalesce(answers, 0) * 1e9 / bin_ns as requests_per_s,
  coalesce(good, 0) * 1e9 / bin_ns as goodput
from slices left join tokens using (slice) left join ends using (slice) left join good using (slice), span order by slice
