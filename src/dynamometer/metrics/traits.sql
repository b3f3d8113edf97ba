-- metric: traits
-- unit: one row an ok answer of the load, in the order of sending; *_ms are milliseconds, tokens are counts
-- formula: what was asked and how things stood when it was sent: in_flight and prompt_ahead count the other requests at that moment
--   (prompt_ahead: prompt tokens of those without a first token), idle_ms is how long nothing had been in flight before it
-- exclusions: warm-up, failed, empty and cancelled answers are no rows, but they count among the others
with asked as (
  select *, coalesce(nullif(prompt_tokens, 0), nullif(input_tokens, 0))::double as prompt
  from answers where outcome <> 'not sent' and sent_ns is not null),
moments as (
  select sent_ns as at_ns, request, 1 as born, coalesce(prompt, 0) as waits, null::bigint as ended_ns from asked
  union all select ended_ns, null, -1, 0, ended_ns from asked
  union all select coalesce(first_ns, ended_ns), null, 0, -coalesce(prompt, 0), null from asked),
running as (
  select request, at_ns, sum(born) over before as in_flight, sum(waits) over before as prompt_ahead, max(ended_ns) over before as quiet_ns
  from moments window before as (order by at_ns, born, request rows between unbounded preceding and 1 preceding)),
said as (
  select request, max(n) filter (kind = 'timing' and note = 'queue') / 1e3 as queue_ms,
    max(n) filter (kind = 'timing' and note = 'load') / 1e3 as load_ms, count(*) filter (kind = 'preempt') as preempted,
    max(bytes) filter (kind = 'sent') as request_bytes, bool_or(kind = 'sent' and note = 'new')::int as new_connection
  from events where kind in ('timing', 'preempt', 'sent') group by request),
longest as (select request, max(gap_ns) / 1e6 as longest_gap_ms from gaps group by request)
select a.request, a.sent_ns, case when a.streamed then (a.first_ns - a.due_ns) / 1e6 end as ttft_ms,
  (a.last_ns - a.due_ns) / 1e6 as e2e_ms,
  case when a.streamed and a.output_tokens > 1 and a.chunks > 1 then (a.last_ns - a.first_ns) / (a.output_tokens - 1) / 1e6 end as tpot_ms,
  (a.sent_ns - a.due_ns) / 1e6 as late_ms, a.prompt as prompt_tokens, said.request_bytes, a.output_tokens,
  a.prompt_tokens - a.cached_tokens as uncached_tokens, coalesce(r.in_flight, 0) as in_flight, coalesce(r.prompt_ahead, 0) as prompt_ahead,
  case when coalesce(r.in_flight, 0) = 0 then (a.sent_ns - r.quiet_ns) / 1e6 else 0 end as idle_ms,
  said.queue_ms, said.load_ms, said.preempted, a.retries, said.new_connection, longest.longest_gap_ms
from asked a left join running r on r.request = a.request left join said on said.request = a.request
  left join longest on longest.request = a.request
where a.phase = 'load' and a.outcome = 'ok' order by a.sent_ns, a.request
