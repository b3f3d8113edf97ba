-- metric: kept
-- unit: one row a request, as in answers
-- formula: the requests of phase "load" that were sent inside the measured window (kept_from_ns to kept_until_ns of the
--   table span; a resumed run keeps all of them, while its rates are those of its longest stretch)
-- exclusions: warm-up requests, requests cut as warm-up by the steady-state rule, requests never sent
select answers.* from answers, span
where phase = 'load' and outcome <> 'not sent' and coalesce(sent_ns, due_ns, ended_ns) between kept_from_ns and kept_until_ns
