-- This replica ends, and has given back what it had.
redis.call('DEL', P .. 'replica:' .. me, P .. 'inbox:' .. me)
redis.call('ZREM', P .. 'replicas', me)
for _, lane in ipairs(LANES) do
  local stream = P .. 'lane:' .. lane
  if redis.call('EXISTS', stream) == 1 and #redis.call('XPENDING', stream, GROUP, '-', '+', 1, me) == 0 then
    redis.call('XGROUP', 'DELCONSUMER', stream, GROUP, me)
  end
end
return {'left', waiting()}
