-- metric: flow
-- unit: requests
-- formula: in_flight = time of all requests inside the window over its length; turned = requests that ended in the window a second
--   times their mean time from sent to end; by Little's law the two agree in a steady state
-- exclusions: none; warm-up requests load the engine too
select sum(greatest(0, least(ended_ns, until_ns) - greatest(sent_ns, from_ns))) / nullif(any_value(until_ns - from_ns), 0) as in_flight,
  sum(ended_ns - sent_ns) filter (ended_ns between from_ns and until_ns) / nullif(any_value(until_ns - from_ns), 0) as turned,
  any_value(until_ns - from_ns) / avg(ended_ns - sent_ns) filter (ended_ns between from_ns and until_ns) as stays, count(*) as requests
from answers, span where sent_ns is not null
