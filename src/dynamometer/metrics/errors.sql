-- metric: errors
-- unit: requests
-- formula: failed and cancelled requests by class, with one message as an example
-- exclusions: warm-up requests
select outcome, reason as class, count(*) as requests, min(error) as example, min(status) as status
from answers where phase = 'load' and outcome in ('error', 'cancelled') group by outcome, reason order by requests desc, class
