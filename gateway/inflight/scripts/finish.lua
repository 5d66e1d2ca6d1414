-- An entry that this replica worked on is done. Without an outcome it ends only if nobody else waits for one.
-- ARGV: id packed_outcome
local id, outcome = ARGV[3], ARGV[4]
if redis.call('HGET', entry_key(id), 'worker') ~= me then return {'gone', waiting()} end
local others = {}
for _, replica in ipairs(redis.call('SMEMBERS', waiters_key(id))) do
  if replica ~= me then others[#others + 1] = replica end
end
if #others > 0 and outcome == '' then return {'waited', waiting()} end
for _, replica in ipairs(others) do send(replica, 'answer', id, outcome) end
drop(id)
return {'done', waiting()}
