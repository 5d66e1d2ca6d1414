-- This replica lives: renew its leases, tell how busy it is, learn how busy the others are, clear away what ran out.
-- ARGV: figures lease_ms idle_ms count_of_running running... awaited...
local lease, idle, count = tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6])
redis.call('ZADD', P .. 'replicas', now, me)
redis.call('SET', P .. 'replica:' .. me, ARGV[3], 'PX', lease)

local lost, missing = {}, {}
for at = 7, 6 + count do
  local id = ARGV[at]
  local worker, turn, lane, digest = unpack(get(id, 'worker', 'turn', 'lane', 'digest'))
  if worker ~= me then
    lost[#lost + 1] = id
  else
    for _, key in ipairs({entry_key(id), waiters_key(id), P .. 'digest:' .. digest}) do keep(key) end
    if turn then redis.call('XCLAIM', P .. 'lane:' .. lane, GROUP, me, 0, turn, 'JUSTID') end
  end
end
for at = 7 + count, #ARGV do
  local id = ARGV[at]
  if not alive(id) then
    drop(id)
    missing[#missing + 1] = id
  end
end

for _, id in ipairs(redis.call('ZRANGEBYSCORE', P .. 'deadlines', '-inf', now - 1000, 'LIMIT', 0, 100)) do
  if redis.call('EXISTS', entry_key(id)) == 1 then
    drop(id)
  else
    for _, lane in ipairs(LANES) do redis.call('ZREM', P .. 'waiting:' .. lane, id) end
    redis.call('ZREM', P .. 'deadlines', id)
  end
end

local function left_behind(lane)
  if redis.call('EXISTS', P .. 'lane:' .. lane) == 0 then return 0 end
  return #redis.call('XPENDING', P .. 'lane:' .. lane, GROUP, 'IDLE', idle, '-', '+', 10)
end

-- A replica that has been silent for long is forgotten, once nothing can be claimed from it.
local function forget(replica)
  for _, lane in ipairs(LANES) do
    if redis.call('EXISTS', P .. 'lane:' .. lane) == 1 then
      if #redis.call('XPENDING', P .. 'lane:' .. lane, GROUP, '-', '+', 1, replica) > 0 then return end
      redis.call('XGROUP', 'DELCONSUMER', P .. 'lane:' .. lane, GROUP, replica)
    end
  end
  redis.call('ZREM', P .. 'replicas', replica)
  redis.call('DEL', P .. 'inbox:' .. replica)
end

local replicas = {}
for _, replica in ipairs(redis.call('ZRANGE', P .. 'replicas', 0, -1)) do
  local figures = redis.call('GET', P .. 'replica:' .. replica)
  if figures then replicas[#replicas + 1] = {replica, figures} else forget(replica) end
end

local ages = {}
for at, lane in ipairs(LANES) do
  local oldest = redis.call('ZRANGE', P .. 'waiting:' .. lane, 0, 0, 'WITHSCORES')[2]
  ages[at] = oldest and math.max(0, now - tonumber(oldest)) or 0
  for _, key in ipairs({'lane:', 'turns:', 'waiting:', 'taken:'}) do keep(P .. key .. lane) end
end
for _, key in ipairs({'replicas', 'deadlines', 'figures', 'inbox:' .. me}) do keep(P .. key) end
return {
  string.format('%.0f', now), lost, missing, replicas, ages, left_behind('small') + left_behind('large'), waiting(),
}
