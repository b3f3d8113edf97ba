-- metric: lateness
-- unit: ms
-- formula: sent - due: how late this client was; the error budget of every latency here
-- exclusions: requests that were never sent
select request, sent_ns as at_ns, (sent_ns - due_ns) / 1e6 as value, false as censored
from kept where sent_ns is not null and due_ns is not null order by at_ns, request
