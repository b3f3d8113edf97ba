-- metric: icl
-- unit: ms
-- formula: time between two chunks of one answer (inter-chunk, not inter-token: a chunk may carry several tokens)
-- exclusions: as itl
select request, gap_ns / 1e6 as value, 1.0 as weight
from gaps join kept using (request) where streamed and outcome = 'ok' and gap_ns is not null
