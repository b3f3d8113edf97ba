-- metric: totals
-- unit: requests, tokens
-- formula: requests by how they ended; tokens summed over the ok answers, as the server counts them; null: it does not say
-- exclusions: warm-up requests; requests never sent. The whole load counts here, also what the steady-state rule cut
select count(*) filter (outcome = 'ok') as ok, count(*) filter (outcome = 'error') as failed,
  count(*) filter (outcome = 'cancelled') as cancelled, count(*) filter (outcome = 'empty') as empty,
  count(*) filter (retries > 0) as retried, count(*) filter (outcome = 'ok' and streamed) as streamed,
  sum(output_tokens) filter (outcome = 'ok') as output_tokens, sum(prompt_tokens) filter (outcome = 'ok') as input_tokens,
  sum(cached_tokens) filter (outcome = 'ok') as cached_tokens, sum(reasoning_tokens) filter (outcome = 'ok') as reasoning_tokens
from answers where phase = 'load' and outcome <> 'not sent'
