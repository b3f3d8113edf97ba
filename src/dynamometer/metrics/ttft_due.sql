-- metric: ttft_due
-- unit: ms
-- formula: first - due: what a user waits who came when the schedule said; it holds the client's own delay too
-- exclusions: as ttft
select request, sent_ns as at_ns, (coalesce(first_ns, ended_ns) - due_ns) / 1e6 as value, first_ns is null as censored
from kept where streamed and outcome in ('ok', 'cancelled') and due_ns is not null order by at_ns, request
