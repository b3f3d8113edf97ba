-- metric: e2e
-- unit: ms
-- formula: last - sent: from the first byte of the request to the last token, one rule for every engine
-- exclusions: failed and empty answers; a cancelled request is censored at its end, not dropped
select request, sent_ns as at_ns, (case outcome when 'ok' then last_ns else ended_ns end - sent_ns) / 1e6 as value,
  outcome = 'cancelled' as censored
from kept where outcome in ('ok', 'cancelled') order by at_ns, request
