-- metric: throughput
-- unit: tokens/s, requests/s
-- formula: output tokens that arrived inside the window; answers, each with the share of its stay (sent to last token) that lies inside
--   the window; prompt tokens, each with the share of its prompt's wait (sent to first token) inside; over the window's length
-- exclusions: warm-up requests; all that failed answers brought; tokens and time before and after the window
with arrived as (
  select coalesce(sum(tokens), 0) as output_tokens from gaps join answers using (request), span
  where phase = 'load' and outcome in ('ok', 'cancelled') and at_ns between from_ns and until_ns),
ended as (
  select coalesce(sum(least(1, greatest(0, 1.0 * (least(last_ns, until_ns) - greatest(sent_ns, from_ns)) / greatest(last_ns - sent_ns, 1))))
      filter (outcome = 'ok'), 0) as requests,
    sum(prompt_tokens * least(1, greatest(0, 1.0 * (least(first_ns, until_ns) - greatest(sent_ns, from_ns)) / greatest(first_ns - sent_ns, 1))))
      filter (outcome in ('ok', 'cancelled')) as input_tokens
  from answers, span where phase = 'load'),
length as (select nullif(until_ns - from_ns, 0) / 1e9 as window_s from span)
select window_s, output_tokens, requests, input_tokens, output_tokens / window_s as output_tokens_per_s,
  requests / window_s as requests_per_s, input_tokens / window_s as input_tokens_per_s
from arrived, ended, length
