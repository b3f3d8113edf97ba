-- metric: ttfa
-- unit: ms
-- formula: first_content - sent: time to the first token of the answer itself, after any reasoning
-- exclusions: as ttft; answers that are reasoning only have none
select request, sent_ns as at_ns, (coalesce(first_content_ns, ended_ns) - sent_ns) / 1e6 as value, first_content_ns is null as censored
from kept where streamed and (outcome = 'cancelled' or outcome = 'ok' and first_content_ns is not null) order by at_ns, request
