-- metric: outcomes
-- unit: share of requests
-- formula: error_rate = failed / (ok + empty + failed)
-- exclusions: warm-up, cancelled and unsent requests
select request, sent_ns as at_ns, (outcome = 'error')::int as failed
from answers where phase = 'load' and outcome in ('ok', 'empty', 'error') order by sent_ns, request
