-- metric: answers
-- unit: one row a request; *_ns are nanoseconds on the run's clock, tokens are counts, sizes are bytes
-- formula: sent = first byte of the first attempt; first = first chunk of any channel; first_content = first chunk that is not
--   reasoning; last = last chunk; done = end of the stream; output_tokens = the server's usage, else the server's counts in
--   the chunks, else the number of chunks (an estimate); tokens_per_chunk = (output_tokens - 1) / (chunks - 1), for later chunks
-- exclusions: none; warm-up, failed and cancelled requests are rows too
with told as (
  select request,
    min(at_ns) filter (kind = 'due') as due_ns, min(at_ns) filter (kind = 'sent') as sent_ns,
    max(at_ns) filter (kind = 'headers') as headers_ns, max(at_ns) filter (kind = 'done') as done_ns,
    max(at_ns) filter (kind = 'error') as error_ns, max(at_ns) filter (kind = 'cancel') as cancel_ns,
    max(at_ns) filter (kind = 'usage') as usage_ns, arg_max(n, at_ns) filter (kind = 'headers') as status,
    max(n) filter (kind = 'usage' and note = 'output') as usage_output,
    max(n) filter (kind = 'usage' and note = 'prompt') as prompt_tokens,
    max(n) filter (kind = 'usage' and note = 'cached') as cached_tokens,
    max(n) filter (kind = 'usage' and note = 'reasoning') as reasoning_tokens,
    arg_max(note, at_ns) filter (kind = 'finish') as finish, arg_max(note, at_ns) filter (kind = 'error') as error,
    arg_max(note, at_ns) filter (kind = 'cancel') as cancel, count(*) filter (kind = 'retry') as retries,
    not bool_or(kind = 'frame' and note = 'whole') as streamed
  from events where kind <> 'chunk' group by request),
text as (
  select request, min(at_ns) as first_ns, min(at_ns) filter (note is distinct from 'reasoning') as first_content_ns,
    max(at_ns) as last_ns, count(*) as chunks, sum(n) as counted, bool_and(n > 0) as all_counted, sum(bytes) as text_bytes
  from events where kind = 'chunk' group by request),
joined as (
  select r.*, told.* exclude (request), text.* exclude (request, chunks, counted, all_counted),
    coalesce(chunks, 0) as chunks, coalesce(counted = usage_output, all_counted, false) as per_chunk, counted, all_counted,
    coalesce(done_ns, error_ns, cancel_ns, (select max(at_ns) from events)) as ended_ns,
    case when sent_ns is null and error_ns is null then 'not sent' when error_ns is not null then 'error'
      when done_ns is null then 'cancelled' when coalesce(chunks, 0) = 0 then 'empty' else 'ok' end as outcome,
    case when coalesce(usage_output, 0) > 0 or coalesce(chunks, 0) = 0 and usage_output = 0 then 'usage' when chunks is null then 'none'
      when all_counted then 'chunk counts' else 'chunks (estimated)' end as output_tokens_source
  from requests r left join told using (request) left join text using (request))
select * exclude (usage_output, counted, all_counted, output_tokens), output_tokens as asked_tokens, usage_output, counted, all_counted,
  case output_tokens_source when 'usage' then usage_output when 'chunk counts' then counted else chunks end::bigint as output_tokens,
  case when chunks < 2 then null when output_tokens_source = 'usage' then (usage_output - 1) / (chunks - 1) else 1.0 end as tokens_per_chunk,
  case when outcome = 'error' then trim(split_part(error, ':', 1)) when outcome = 'cancelled' then coalesce(cancel, 'interrupt') end as reason
from joined order by request
