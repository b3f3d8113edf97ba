-- metric: ttft
-- unit: ms
-- formula: first - sent, where first is the read that completed the first chunk of any channel (content, reasoning, tool, refusal)
-- exclusions: failed and empty answers; answers that came whole (no stream); a request cancelled before its first chunk is censored, not dropped
select request, sent_ns as at_ns, (coalesce(first_ns, ended_ns) - sent_ns) / 1e6 as value, first_ns is null as censored
from kept where streamed and outcome in ('ok', 'cancelled') order by at_ns, request
