-- metric: milestones
-- unit: one row a request; ms after sent, tokens, events
-- formula: the moments of an answer at which other tools start and stop their clocks; text_tokens = output less reasoning tokens, as
--   a tokenizer would find them in the text; events = everything the stream carried but usage and the end marker
-- exclusions: as kept; ok answers that came as a stream
with channels as (
  select request, min(at_ns) filter (is_answer) as first_answer, max(at_ns) filter (is_answer) as last_answer,
    sum(tokens) filter (is_answer) as answer_tokens
  from gaps group by request),
others as (
  select request, count(*) filter (kind in ('frame', 'finish', 'chunk')) as events, max(at_ns) filter (kind = 'usage') as usage_ns
  from events group by request)
select request, (due_ns - sent_ns) / 1e6 as due, (first_ns - sent_ns) / 1e6 as first, (last_ns - sent_ns) / 1e6 as last,
  (first_answer - sent_ns) / 1e6 as first_answer, (last_answer - sent_ns) / 1e6 as last_answer,
  (coalesce(others.usage_ns, done_ns) - sent_ns) / 1e6 as usage, (done_ns - sent_ns) / 1e6 as done, output_tokens as tokens,
  coalesce(output_tokens - reasoning_tokens, answer_tokens, 0) as text_tokens, events
from kept join channels using (request) join others using (request)
where outcome = 'ok' and streamed order by sent_ns, request
