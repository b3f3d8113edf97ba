-- metric: gaps
-- unit: one row a chunk of text; gap_ns since the chunk before it in the same answer, null for the first; tokens as counted;
--   is_answer: not reasoning
-- formula: tokens = the server's count of this chunk; else 1 for the first chunk and tokens_per_chunk for each later one;
--   an answer of a single chunk has all its tokens in it
-- exclusions: none; a gap of 0 means that one socket read brought both chunks
select e.request, e.at_ns, e.note is distinct from 'reasoning' as is_answer, e.at_ns - lag(e.at_ns) over inside as gap_ns,
  case when a.per_chunk then e.n when a.chunks = 1 then a.output_tokens
    when lag(e.at_ns) over inside is null then 1 else a.tokens_per_chunk end::double as tokens
from events e join answers a using (request) where e.kind = 'chunk' window inside as (partition by e.request order by e.at_ns)
