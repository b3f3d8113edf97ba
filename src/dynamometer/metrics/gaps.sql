-- metric: gaps
-- unit: one row a chunk of text; gap_ns since the chunk before it in the same answer, null for the first; tokens as counted;
--   is_answer: not reasoning
-- formula: tokens = the server's count of this chunk; else 1 for the first chunk and tokens_per_chunk for each later one;
--   an answer of a single chunk has all its tokens in it
-- exclusions: none; a gap of 0 means that one socket read brought both chunks
with pieces as (
  select request, at_ns, n, note is distinct from 'reasoning' as is_answer,
    at_ns - lag(at_ns) over (partition by request order by at_ns) as gap_ns
  from events where kind = 'chunk')
select p.request, p.at_ns, p.is_answer, p.gap_ns, case when a.per_chunk then p.n when a.chunks = 1 then a.output_tokens
  when p.gap_ns is null then 1 else a.tokens_per_chunk end::double as tokens
from pieces p join answers a using (request)
