-- metric: gaps
-- unit: one row a chunk of text; gap_ns since the chunk before it in the same answer, null for the first; tokens as counted
-- formula: tokens = the server's count of this chunk; else 1 for the first chunk and tokens_per_chunk for each later one;
--   an answer of a single chunk has all its tokens in it
-- exclusions: none; a gap of 0 means that one socket read brought both chunks
select e.request, e.at_ns, e.at_ns - lag(e.at_ns) over (partition by e.request order by e.at_ns) as gap_ns,
  case when a.per_chunk then e.n when a.chunks = 1 then a.output_tokens
    when row_number() over (partition by e.request order by e.at_ns) = 1 then 1 else a.tokens_per_chunk end::double as tokens
from events e join answers a using (request) where e.kind = 'chunk'
