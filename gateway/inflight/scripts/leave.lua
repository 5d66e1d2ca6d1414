-- Nobody at this replica waits for the entry any more; it ends where nobody else does either.
-- ARGV: id only_queued
local id = ARGV[3]
local state, worker = unpack(get(id, 'state', 'worker'))
if not state then return {'gone', waiting()} end
if ARGV[4] == '1' and state ~= 'queued' then return {'running', waiting()} end
redis.call('SREM', waiters_key(id), me)
if redis.call('SCARD', waiters_key(id)) > 0 then return {'waited', waiting()} end
if worker then send(worker, 'cancel', id, '') end
drop(id)
return {'left', waiting()}
