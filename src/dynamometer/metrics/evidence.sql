-- metric: evidence
-- unit: one row: shares from 0 to 1, cores
-- formula: coalesced = chunk gaps of 0 ns among all gaps; cache hits = rise of the server's own counters inside the window;
--   foreign_cores = mean CPU that other processes used; odd_decode = answers whose server says that it decoded more than five
--   times faster than the answer came in, or whose duration the dialect already found impossible; odd_total = answers whose server says that it took half as long again as they did
-- exclusions: as kept; samples outside the window
with counters as (
  select name, sum(rise) as rise from (
    select name, device, source, max(value) - min(value) as rise from samples, span
    where name like '%prefix_cache_hits%' or name like '%prefix_cache_queries%' group by name, device, source)
  group by name),
cache as (
  select sum(rise) filter (name like '%hits%') / nullif(sum(rise) filter (name like '%queries%'), 0) as hits from counters),
host as (
  select avg(value) as foreign_cores, max(value) as foreign_peak from samples, span
  where name = 'cpu_foreign_cores' and at_ns between from_ns and until_ns),
reads as (
  select avg((gap_ns = 0)::int) as coalesced from gaps join kept using (request) where outcome = 'ok' and gap_ns is not null),
suspect as (
  select count(distinct request) / nullif((select count(*) from kept where outcome = 'ok'), 0) as share
  from events join kept using (request) where kind = 'timing' and note like 'suspect %' and outcome = 'ok'),
odd as (
  select greatest(avg((output_tokens >= 2 and decode_ms * 5 < client_decode_ms)::int), (select share from suspect)) as decode,
    avg((total_ms > client_total_ms * 1.5)::int) as total
  from server)
select hits, foreign_cores, foreign_peak, coalesced, odd.decode as odd_decode, odd.total as odd_total from cache, host, reads, odd
