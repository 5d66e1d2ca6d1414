-- Take what this replica has room for: first what a dead one has left, then whose turn it is.
-- ARGV: free_reads capacity free_decisions most_entries idle_ms most_tries packed_refusal small_passes
local free, capacity, decisions, most = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local idle, most_tries, refusal, passes = ARGV[7], tonumber(ARGV[8]), ARGV[9], tonumber(ARGV[10])
local taken, expired = {}, 0

local function fits(reads)
  return decisions > 0 and #taken < most and math.max(1, math.min(reads, capacity)) <= free
end

local function begin(id, lane, turn)
  redis.call('HINCRBY', entry_key(id), 'tries', 1)
  redis.call('HSET', entry_key(id), 'state', 'running', 'worker', me, 'turn', turn)
  redis.call('HSET', P .. 'taken:' .. lane, turn, id)
  keep(P .. 'taken:' .. lane)
  keep(entry_key(id))
  local reads, form, type_, wait, body, deadline, patience =
    unpack(get(id, 'reads', 'form', 'type', 'wait', 'body', 'deadline', 'patience'))
  if redis.call('SISMEMBER', waiters_key(id), me) == 1 then body = '' end
  decisions, free = decisions - 1, free - math.max(1, math.min(tonumber(reads), capacity))
  taken[#taken + 1] = {id, tonumber(reads), deadline - now, tonumber(patience), form, type_, wait, body}
end

local function claim(lane)
  local stream = P .. 'lane:' .. lane
  for _, left in ipairs(redis.call('XPENDING', stream, GROUP, 'IDLE', idle, '-', '+', 10)) do
    local turn = left[1]
    local id = redis.call('HGET', P .. 'taken:' .. lane, turn)
    local reads, tries = unpack(get(id or '', 'reads', 'tries'))
    if not reads then
      end_turn(lane, turn)
    elseif tonumber(tries) >= most_tries then
      for _, replica in ipairs(redis.call('SMEMBERS', waiters_key(id))) do send(replica, 'answer', id, refusal) end
      drop(id)
    elseif fits(tonumber(reads)) then
      redis.call('XAUTOCLAIM', stream, GROUP, me, idle, turn, 'COUNT', 1)
      begin(id, lane, turn)
      expired = expired + 1
    end
  end
end

-- The next turn of a lane and the entry it is for; turns and entries that have run out are cleared away.
local function first(lane)
  local stream = P .. 'lane:' .. lane
  while true do
    local group = redis.call('XINFO', 'GROUPS', stream)[1]
    local last
    for at = 1, #group, 2 do if group[at] == 'last-delivered-id' then last = group[at + 1] end end
    local found = redis.call('XRANGE', stream, '(' .. last, '+', 'COUNT', 1)[1]
    if not found then return end
    local turn, key = found[1], found[2][2]
    local id = redis.call('LINDEX', line_key(lane, key), 0)
    if not id then
      redis.call('XDEL', stream, turn)
      redis.call('HDEL', P .. 'turns:' .. lane, key)
    else
      local reads, deadline = unpack(get(id, 'reads', 'deadline'))
      if reads and tonumber(deadline) > now then return turn, key, id, tonumber(reads) end
      if reads then drop(id) else leave_line(id, lane, key, 0) end
    end
  end
end

local function take(lane, turn, key, id, reads)
  redis.call('XREADGROUP', 'GROUP', GROUP, me, 'COUNT', 1, 'STREAMS', P .. 'lane:' .. lane, '>')
  redis.call('HDEL', P .. 'turns:' .. lane, key)
  leave_line(id, lane, key, reads)
  give_turn(lane, key)
  begin(id, lane, turn)
end

local open = {}
for _, lane in ipairs(LANES) do
  open[lane] = redis.call('EXISTS', P .. 'lane:' .. lane) == 1
  if open[lane] then claim(lane) end
end
while true do
  local counts = waiting()
  local small, large = open.small and counts[1] > 0, open.large and counts[3] > 0
  local passed = tonumber(redis.call('HGET', P .. 'figures', 'passed')) or 0
  local lane
  if large and (not small or passed >= passes) then lane = 'large' elseif small then lane = 'small' else break end
  local turn, key, id, reads = first(lane)
  if turn then
    if not fits(reads) then break end
    take(lane, turn, key, id, reads)
    redis.call('HSET', P .. 'figures', 'passed', lane == 'small' and large and passed + 1 or 0)
    keep(P .. 'figures')
  elseif counts[lane == 'small' and 1 or 3] == waiting()[lane == 'small' and 1 or 3] then
    break
  end
end
return {taken, expired, waiting()}
