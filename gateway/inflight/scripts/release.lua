-- This replica gives back an entry that it took or began, and waits for it no more.
-- ARGV: id
local id = ARGV[3]
local worker, turn, lane, body, patience = unpack(get(id, 'worker', 'turn', 'lane', 'body', 'patience'))
if worker ~= me then return {'gone', waiting()} end
redis.call('SREM', waiters_key(id), me)
local waiters = redis.call('SMEMBERS', waiters_key(id))
if #waiters > 0 and turn and body then
  end_turn(lane, turn)
  redis.call('HDEL', entry_key(id), 'worker', 'turn')
  redis.call('HSET', entry_key(id), 'state', 'queued', 'deadline', string.format('%.0f', now + patience))
  line_up(id, true)
  return {'queued', waiting()}
end
for _, replica in ipairs(waiters) do send(replica, 'lost', id, '') end
drop(id)
return {'left', waiting()}
