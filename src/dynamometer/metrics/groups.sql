-- metric: groups
-- unit: one row a family and level; ms, tokens, tokens/s
-- formula: medians and means over the answers of the group; stream_tokens_per_s = 1000 / mean tpot, the speed that one reader sees
-- exclusions: as kept; latencies of ok answers only
select family, level, count(*) as requests, count(*) filter (outcome = 'ok') as ok, count(*) filter (outcome = 'error') as failed,
  avg(coalesce(prompt_tokens, nullif(input_tokens, 0))) as input_tokens, avg(output_tokens) filter (outcome = 'ok') as output_tokens,
  median(first_ns - sent_ns) filter (outcome = 'ok' and streamed) / 1e6 as ttft_p50_ms,
  avg((last_ns - first_ns) / nullif(output_tokens - 1, 0)) filter (outcome = 'ok' and streamed and chunks >= 2) / 1e6 as tpot_mean_ms,
  median(last_ns - sent_ns) filter (outcome = 'ok') / 1e6 as e2e_p50_ms, 1000 / nullif(tpot_mean_ms, 0) as stream_tokens_per_s
from kept group by family, level order by family, level
