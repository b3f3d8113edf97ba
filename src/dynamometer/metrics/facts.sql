-- metric: facts
-- unit: one row: counts of requests, ms, shares
-- formula: what the checks ask about: lateness, order of times, lengths against what was asked, counts against each other
-- exclusions: warm-up and unsent requests
select count(*) as requests, count(*) filter (outcome = 'ok') as ok, count(*) filter (outcome = 'empty') as empty,
  count(*) filter (outcome = 'error') as failed, count(*) filter (outcome = 'cancelled') as cancelled,
  count(*) filter (retries > 0) as retried, quantile_cont((sent_ns - due_ns) / 1e6, 0.5) as late_p50_ms,
  quantile_cont((sent_ns - due_ns) / 1e6, 0.99) as late_p99_ms,
  count(*) filter (sent_ns < due_ns or first_ns < sent_ns or last_ns < first_ns or ended_ns < last_ns) as backward,
  median((coalesce(first_ns, ended_ns) - sent_ns) / 1e6) filter (outcome = 'ok') as ttft_p50_ms,
  count(*) filter (ignore_eos and asked_tokens > 0 and outcome in ('ok', 'empty')) as fixed,
  count(*) filter (ignore_eos and coalesce(output_tokens, 0) < asked_tokens and outcome in ('ok', 'empty')) as short,
  avg(coalesce(output_tokens, 0)) filter (ignore_eos and outcome in ('ok', 'empty')) as fixed_tokens,
  count(*) filter (input_tokens > 0 and prompt_tokens < 0.8 * input_tokens) as cut_prompts,
  max(input_tokens) filter (input_tokens > 0 and prompt_tokens < 0.8 * input_tokens) as cut_from,
  max(prompt_tokens) filter (input_tokens > 0 and prompt_tokens < 0.8 * input_tokens) as cut_to,
  sum(cached_tokens) / nullif(sum(prompt_tokens) filter (cached_tokens is not null), 0) as cached_share,
  count(*) filter (outcome = 'ok' and output_tokens_source = 'chunks (estimated)' and streamed) as estimated,
  count(*) filter (outcome = 'ok' and all_counted and counted <> usage_output) as miscounted,
  count(*) filter (outcome = 'ok' and asked_tokens > 0 and output_tokens > asked_tokens) as too_long
from answers where phase = 'load' and outcome <> 'not sent'
