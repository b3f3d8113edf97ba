-- metric: itl
-- unit: ms
-- formula: gap / tokens for each later chunk, weighted by its tokens: one value a token, so that each token weighs the same
-- exclusions: the wait for the first chunk; failed, empty and cancelled answers; answers that came whole (no stream)
select request, gap_ns / tokens / 1e6 as value, tokens as weight
from gaps join kept using (request) where streamed and outcome = 'ok' and gap_ns is not null and tokens > 0
