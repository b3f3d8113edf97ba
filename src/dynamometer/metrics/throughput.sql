-- metric: throughput
-- unit: tokens/s, requests/s
-- formula: output tokens that arrived, answers that came to their last token and prompt tokens whose answer began, each inside the
--   window, over the window's length
-- exclusions: warm-up requests; all that failed answers brought; tokens and time before and after the window
with arrived as (
  select coalesce(sum(tokens), 0) as output_tokens from gaps join answers using (request), span
  where phase = 'load' and outcome in ('ok', 'cancelled') and at_ns between from_ns and until_ns),
ended as (
  select count(*) filter (outcome = 'ok' and last_ns between from_ns and until_ns) as requests,
    sum(prompt_tokens) filter (outcome in ('ok', 'cancelled') and first_ns between from_ns and until_ns) as input_tokens
  from answers, span where phase = 'load'),
length as (select nullif(until_ns - from_ns, 0) / 1e9 as window_s from span)
select window_s, output_tokens, requests, input_tokens, output_tokens / window_s as output_tokens_per_s,
  requests / window_s as requests_per_s, input_tokens / window_s as input_tokens_per_s
from arrived, ended, length
