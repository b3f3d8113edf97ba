-- metric: progress
-- unit: ms
-- formula: ttft, tpot and e2e of each ok answer in the order of sending, warm-up cut or not: what the steady-state rule looks at
-- exclusions: tagged warm-up; failed, empty and cancelled answers
select request, sent_ns, case when streamed then (first_ns - sent_ns) / 1e6 end as ttft,
  case when streamed and output_tokens >= 2 and chunks >= 2 then (last_ns - first_ns) / (output_tokens - 1) / 1e6 end as tpot,
  (last_ns - sent_ns) / 1e6 as e2e
from answers where phase = 'load' and outcome = 'ok' order by sent_ns, request
