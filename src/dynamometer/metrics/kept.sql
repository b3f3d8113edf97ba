-- metric: kept
-- unit: one row a request, as in answers
-- formula: the requests of phase "load" that were sent inside the measured window (from_ns to until_ns of the table span)
-- exclusions: warm-up requests, requests cut as warm-up by the steady-state rule, requests never sent
select answers.* from answers, span
where phase = 'load' and outcome <> 'not sent' and coalesce(sent_ns, due_ns, ended_ns) between from_ns and until_ns
