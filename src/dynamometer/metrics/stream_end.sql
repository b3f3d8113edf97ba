-- metric: stream_end
-- unit: ms
-- formula: done - sent: until the server closed the stream; the usage chunk and the end marker come after the last token
-- exclusions: failed, empty and cancelled answers
select request, sent_ns as at_ns, (done_ns - sent_ns) / 1e6 as value, false as censored
from kept where outcome = 'ok' order by at_ns, request
