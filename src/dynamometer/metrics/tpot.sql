-- metric: tpot
-- unit: ms
-- formula: (last - first) / (output_tokens - 1): one value a request, so that each request weighs the same
-- exclusions: answers of fewer than 2 tokens or of a single chunk (no decode phase was seen); failed, empty and cancelled answers;
--   answers that came whole (no stream)
select request, sent_ns as at_ns, (last_ns - first_ns) / (output_tokens - 1) / 1e6 as value, false as censored
from kept where streamed and outcome = 'ok' and output_tokens >= 2 and chunks >= 2 order by at_ns, request
