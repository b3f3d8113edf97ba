-- metric: e2e_due
-- unit: ms
-- formula: last - due: from the time the schedule wanted it sent to the last token
-- exclusions: as e2e
select request, sent_ns as at_ns, (case outcome when 'ok' then last_ns else ended_ns end - due_ns) / 1e6 as value,
  outcome = 'cancelled' as censored
from kept where outcome in ('ok', 'cancelled') and due_ns is not null order by at_ns, request
