-- metric: server
-- unit: ms, one row a request
-- formula: the durations that the server reports of itself, beside what this client saw from first to last token; the two start
--   and stop at different events, so they are never mixed
-- exclusions: as kept, ok answers that carry timings
select request, any_value(sent_ns) as at_ns, max(n) filter (note = 'queue') / 1e3 as queue_ms, max(n) filter (note = 'prompt') / 1e3 as prompt_ms,
  max(n) filter (note = 'decode') / 1e3 as decode_ms, max(n) filter (note = 'total') / 1e3 as total_ms,
  (any_value(last_ns) - any_value(first_ns)) / 1e6 as client_decode_ms, (any_value(done_ns) - any_value(sent_ns)) / 1e6 as client_total_ms,
  any_value(output_tokens) as output_tokens, any_value(prompt_tokens) - coalesce(any_value(cached_tokens), 0) as computed_tokens
from events join kept using (request) where kind = 'timing' and outcome = 'ok' group by request order by at_ns
