-- metric: counting
-- unit: requests
-- formula: answered requests by where the number of output tokens comes from
-- exclusions: warm-up, failed and cancelled requests
select output_tokens_source as source, count(*) as requests, sum(output_tokens) as output_tokens, sum(chunks) as chunks
from answers where phase = 'load' and outcome in ('ok', 'empty') group by 1 order by requests desc, source
