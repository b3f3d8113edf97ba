-- metric: families
-- unit: requests, tokens
-- formula: requests and mean token counts by workload family
-- exclusions: as kept; output tokens of ok answers only
select family, count(*) as requests, count(*) filter (outcome = 'ok') as ok, avg(prompt_tokens) as input_tokens,
  avg(output_tokens) filter (outcome = 'ok') as output_tokens, bool_or(streamed and outcome = 'ok') as streamed
from kept group by family order by family
