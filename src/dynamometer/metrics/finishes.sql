-- metric: finishes
-- unit: requests
-- formula: answered requests by the finish reason that the server gave
-- exclusions: warm-up, failed and cancelled requests
select coalesce(finish, 'not given') as reason, count(*) as requests, min(output_tokens) as least_tokens, max(output_tokens) as most_tokens
from answers where phase = 'load' and outcome in ('ok', 'empty') group by 1 order by requests desc, reason
