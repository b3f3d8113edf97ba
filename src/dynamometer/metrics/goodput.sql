-- metric: goodput
-- unit: one row a request; requests/s once the good ones are counted over the window, each with the share of its stay inside it
-- formula: good = the answer meets every limit of the objective at once (ttft, ttft_due, tpot, e2e, e2e_due); a value equal to its
--   limit passes; tpot does not count against an answer that has none (a single token); null: the run can't show a time it needs
-- exclusions: cancelled requests, from both sides; failed and empty answers stay and count as misses
with times as (
  select *, case when streamed then (first_ns - sent_ns) / 1e6 end as ttft, case when streamed then (first_ns - due_ns) / 1e6 end as ttft_due,
    case when not streamed then null when output_tokens < 2 or chunks < 2 then 0
      else (last_ns - first_ns) / (output_tokens - 1) / 1e6 end as tpot,
    (last_ns - sent_ns) / 1e6 as e2e, (last_ns - due_ns) / 1e6 as e2e_due, coalesce(last_ns, ended_ns) as left_ns
  from kept where outcome <> 'cancelled')
select request, sent_ns as at_ns, ended_ns,
  coalesce(least(1, greatest(0, 1.0 * (least(left_ns, until_ns) - greatest(sent_ns, from_ns)) / greatest(left_ns - sent_ns, 1))), 0) as inside,
  case when outcome <> 'ok' then false else
    (ttft_ms is null or ttft <= ttft_ms) and (ttft_due_ms is null or ttft_due <= ttft_due_ms) and (tpot_ms is null or tpot <= tpot_ms)
    and (e2e_ms is null or e2e <= e2e_ms) and (e2e_due_ms is null or e2e_due <= e2e_due_ms) end as good
from times, limits, span order by at_ns, request
